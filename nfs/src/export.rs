//! A tree with a name, and who may have it.
