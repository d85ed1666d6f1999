//! The operator on Kubernetes: watches objects, gives them to the engine, writes status and
//! events back.
