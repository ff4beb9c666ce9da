//! The modes in which our entry reaches a runtime, what they leave behind, and the files written for the plugin.

mod choice;
mod credential;
mod leaving;
mod own;
mod standalone;
mod template;
