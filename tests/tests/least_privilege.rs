//! The account of our manifests: each manifest's agent and plugin do all that they do with exactly its rules and the admission
//! policy, and miss something without any one verb of them. Other uses of the account are refused by the policy.

#[path = "least_privilege/grants.rs"]
mod grants;
#[path = "least_privilege/life.rs"]
mod life;
#[path = "least_privilege/policy.rs"]
mod policy;
#[path = "least_privilege/rules.rs"]
mod rules;
