//! Facts from a real API server, and from fake ones that know less or lose the thread.

#[path = "facts_api/annotation.rs"]
mod annotation;
#[path = "facts_api/credential.rs"]
mod credential;
#[path = "facts_api/older.rs"]
mod older;
#[path = "facts_api/pods.rs"]
mod pods;
#[path = "facts_api/scene.rs"]
mod scene;
