//! Calls and replies (RFC 5531).
