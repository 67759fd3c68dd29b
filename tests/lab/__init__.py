"""The lab: real hosts (network namespaces with a real sshd each) on one machine, and faults as switches."""
