//! Terminals: clients that speak PostgreSQL's protocol (its documentation, "Frontend/Backend Protocol").
