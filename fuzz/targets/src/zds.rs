//! Messages of a ztunnel.

use ::zds::message::{Message, WorkloadRequest, WorkloadResponse, ZdsHello};

/// Any packet is a message of each kind or an error; a parsed one is not longer when encoded again, and parses back to itself.
///
/// # Panics
/// If one of these does not hold.
pub fn zds_messages(data: &[u8]) {
    reads_back::<ZdsHello>(data);
    reads_back::<WorkloadResponse>(data);
    reads_back::<WorkloadRequest>(data);
}

fn reads_back<T: Message + Default + PartialEq + std::fmt::Debug>(data: &[u8]) {
    match T::decode(data) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(message) => {
            let bytes = message.encode_to_vec();
            assert!(bytes.len() <= data.len().max(16), "{} from {}", bytes.len(), data.len());
            assert_eq!(T::decode(&*bytes).ok(), Some(message));
        }
    }
}
