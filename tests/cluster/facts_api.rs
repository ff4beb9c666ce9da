//! Facts from a real API server, and from fake ones that support less or break watches.

mod annotation;
mod credential;
mod endless;
mod fixture;
mod older;
mod pods;
