//! Where in the arguments the variable parts are.
