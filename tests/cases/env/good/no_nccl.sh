#!/bin/bash
set -e
export PATH=$HOME/bin:$PATH FOO="bar baz"
for i in 1 2 3; do echo "$i"; done
