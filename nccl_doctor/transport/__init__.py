"""Transport: one duplex byte stream to a command on a host, and the session that speaks to the agent over it."""
