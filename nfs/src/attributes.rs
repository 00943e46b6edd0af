//! Attributes on the wire.
