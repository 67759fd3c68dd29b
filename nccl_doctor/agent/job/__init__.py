"""Looking at the processes of a distributed job from outside: read, never touched."""
