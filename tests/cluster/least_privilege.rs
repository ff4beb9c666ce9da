//! The account of our manifests: each manifest's agent and plugin work with exactly its rules and the admission policy, and lack a
//! feature without any single verb. The policy refuses other uses of the account.

mod grants;
mod life;
mod policy;
mod rules;
