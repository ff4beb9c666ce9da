//! Facts from a real API server, and from fake ones that know less or lose the thread.

mod annotation;
mod credential;
mod endless;
mod fixture;
mod older;
mod pods;
