//! Single answers, and misbehaving clients. Paused time advances when all tasks wait; both ends of every connection are in the
//! test's runtime.

mod answers;
mod clients;
mod fake;
