//! Calls that were answered already, so that a retransmitted one is not done twice.
