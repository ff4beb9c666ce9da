//! Bytes of every message.

use zds::message::{
    Ack, AddWorkload, DelWorkload, KeepWorkload, Message as _, RequestPayload, ResponsePayload, SnapshotSent,
    WorkloadInfo, WorkloadRequest, WorkloadResponse, ZdsHello,
};

use crate::ztunnel::{ACK, HELLO, nack};

fn bytes(hex: &str) -> Vec<u8> {
    hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn request(payload: RequestPayload, hex: &str) {
    let message = WorkloadRequest { payload: Some(payload) };
    assert_eq!(message.encode_to_vec(), bytes(hex));
    assert_eq!(WorkloadRequest::decode(&*bytes(hex)), Ok(message));
}

#[test]
fn requests() {
    let uid = || "u1".to_owned();
    let info =
        WorkloadInfo { name: "p".to_owned(), namespace: "ns".to_owned(), service_account: "sa".to_owned() };
    request(
        RequestPayload::Add(AddWorkload { uid: uid(), workload_info: Some(info) }),
        "0a 11 0a 02 75 31 12 0b 0a 01 70 12 02 6e 73 1a 02 73 61",
    );
    request(RequestPayload::Del(DelWorkload { uid: uid() }), "12 04 12 02 75 31");
    request(RequestPayload::SnapshotSent(SnapshotSent {}), "1a 00");
    request(RequestPayload::Keep(KeepWorkload { uid: uid() }), "2a 04 0a 02 75 31");
}

/// Even an empty one: ztunnel would exit without it.
#[test]
fn an_add_always_has_workload_info() {
    let add = AddWorkload { uid: "u".to_owned(), workload_info: Some(WorkloadInfo::default()) };
    assert_eq!(add.encode_to_vec(), bytes("0a 01 75 12 00"));
}

#[test]
fn what_ztunnel_says() {
    assert_eq!(ZdsHello::decode(HELLO), Ok(ZdsHello { version: 1 }));
    assert_eq!(ZdsHello { version: 1 }.encode_to_vec(), bytes("08 01"));
    for (error, hex) in [("", "0a 00"), ("boom", "0a 06 0a 04 62 6f 6f 6d")] {
        let response =
            WorkloadResponse { payload: Some(ResponsePayload::Ack(Ack { error: error.to_owned() })) };
        assert_eq!(response.encode_to_vec(), bytes(hex));
        assert_eq!(WorkloadResponse::decode(&*bytes(hex)), Ok(response));
    }
}

#[test]
fn one_is_never_taken_for_the_other() {
    assert!(ZdsHello::decode(ACK).is_err());
    assert!(WorkloadResponse::decode(HELLO).is_err());
    assert_eq!(WorkloadResponse::decode(&b""[..]), Ok(WorkloadResponse { payload: None }));
}

#[test]
fn the_test_writes_as_the_description_does() {
    assert_eq!(nack("boom"), bytes("0a 06 0a 04 62 6f 6f 6d"));
    assert_eq!(nack(""), bytes("0a 02 0a 00"));
}
