//! The reference provider: the contract with nothing else in the way.
