//! Records of the stream (RFC 5531, section 11).
