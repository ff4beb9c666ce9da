//! The account of our manifests: each manifest's agent and plugin do all that they do with exactly its rules and the admission
//! policy, and miss something without any one verb of them. Other uses of the account are refused by the policy.

mod grants;
mod life;
mod policy;
mod rules;
