"""Facts: what the agents collected, typed, and the bundle that keeps it. Pure data; imports no other room."""
