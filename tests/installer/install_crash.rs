//! The agent is killed repeatedly at random moments. No reader ever sees an incomplete file, and the next start repairs everything.

mod anywhere;
mod conversion;
mod victim;
