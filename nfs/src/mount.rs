//! The MOUNT protocol.
