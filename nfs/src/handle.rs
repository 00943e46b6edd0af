//! File handles that clients cannot forge.
