//! Files that were cut, changed, or written by another version.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod calls;

use calls::{call, header, user};
use polar_record::{CallRecord, JournalError, JournalWriter, RecordedSession};
use polar_types::CallId;
use proptest::prelude::*;
use std::fs;
use std::process::Command;
use std::sync::LazyLock;

/// A journal's bytes and how long the file was after each call.
fn journal(records: &[CallRecord], is_sealed: bool) -> (Vec<u8>, Vec<usize>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut writer = JournalWriter::create(&path, &header()).unwrap();
    let mut ends = vec![writer.file_bytes() as usize];
    for record in records {
        let index = writer.append_call(record).unwrap();
        ends.push(writer.file_bytes() as usize);
        writer.append_delivery(index, true).unwrap();
    }
    if is_sealed {
        writer.seal().unwrap();
    }
    (fs::read(&path).unwrap(), ends)
}

static SEALED: LazyLock<(Vec<u8>, Vec<usize>)> = LazyLock::new(|| journal(&some_records(), true));
static EMPTY: LazyLock<Vec<u8>> = LazyLock::new(|| journal(&[], false).0);

fn read_back(session: &RecordedSession) -> Vec<CallRecord> {
    session.calls().iter().map(|call| session.record(call)).collect()
}

/// A history with a shared beginning, a rewrite, a hole and a call without ids.
fn some_records() -> Vec<CallRecord> {
    let mut records = vec![
        call(&[1, 2], &[3]),
        call(&[1, 2, 3, 4], &[5, 6]),
        call(&[1, 9], &[7]),
        call(&[], &[]),
    ];
    records[1].logprobs[0] = None;
    records[1].messages = vec![user("a"), user("b")];
    records[3].prompt_ids = None;
    for (record, index) in records.iter_mut().zip(0..) {
        record.meta.call_id = CallId::of_index(index);
    }
    records
}

#[test]
fn promise_4_a_file_cut_anywhere_gives_exactly_the_calls_before_the_cut() {
    let records = some_records();
    let (bytes, ends) = journal(&records, true);
    for cut in 0..bytes.len() {
        let whole = ends.iter().filter(|end| **end <= cut).count();
        match (RecordedSession::from_bytes(&bytes[..cut]), whole) {
            (Err(JournalError::NotAJournal | JournalError::Header(_)), 0) => {}
            (Ok(session), 1..) => {
                assert_eq!(read_back(&session), records[..whole - 1], "cut at {cut}");
                assert!(!session.sealed);
                if let Some(damage) = &session.damage {
                    assert!(damage.offset as usize <= cut, "{damage:?}");
                }
            }
            (outcome, _) => panic!("cut at {cut}: {outcome:?}"),
        }
    }
    let session = RecordedSession::from_bytes(&bytes).unwrap();
    assert!(session.sealed && session.damage.is_none());
    assert_eq!(read_back(&session), records);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn promise_4_a_changed_byte_costs_nothing_before_it(at in any::<prop::sample::Index>(), change in 1u8..) {
        let records = some_records();
        let (mut bytes, ends) = SEALED.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let whole = ends.iter().filter(|end| **end <= at).count();
        match RecordedSession::from_bytes(&bytes) {
            Ok(session) => {
                let read = read_back(&session);
                // A changed minor version changes nothing in a file without unknown frames.
                if session.damage.is_none() {
                    prop_assert!((10..12).contains(&at));
                    prop_assert_eq!(read, records);
                } else {
                    prop_assert_eq!(&read[..], &records[..whole - 1]);
                }
            }
            Err(_) => prop_assert_eq!(whole, 0),
        }
    }

    #[test]
    fn any_bytes_behind_the_header_are_survived(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = EMPTY.clone();
        bytes.extend(tail);
        prop_assert!(RecordedSession::from_bytes(&bytes).is_ok());
    }

    /// Frames whose checksum is right and whose content is not: a fault of a writer.
    #[test]
    fn any_payload_is_survived(kind in 0u8..6, payload in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut bytes = EMPTY.clone();
        bytes.extend(frame(kind, &payload));
        let session = RecordedSession::from_bytes(&bytes).unwrap();
        prop_assert_eq!(session.calls().len(), 0);
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_le_bytes();
    let mut hasher = crc32fast::Hasher::new();
    for part in [&len[..], &[kind], payload] {
        hasher.update(part);
    }
    [&len[..], &hasher.finalize().to_le_bytes(), &[kind], payload].concat()
}

/// A call's payload: this JSON text, and no ids.
fn call_frame(text: &serde_json::Value) -> Vec<u8> {
    let text = text.to_string();
    let numbers = [0u8; 1 + 4 + 4 + 5];
    frame(2, &[&(text.len() as u32).to_le_bytes()[..], text.as_bytes(), &numbers].concat())
}

#[test]
fn a_call_that_continues_what_is_not_there_is_damage() {
    let records = some_records();
    let (bytes, _) = journal(&records, false);
    let meta = serde_json::to_value(&records[0].meta).unwrap();
    let text = |base: u32, shared: u64, reply: u32| {
        serde_json::json!({"meta": meta, "values": [], "reply": reply, "tools": null,
            "messages": {"base": base, "shared": shared, "tail": []},
            "prompt": {"base": null, "shared": 0}})
    };
    let reading = |text| RecordedSession::from_bytes(&[&bytes[..], &call_frame(&text)].concat());
    assert_eq!(reading(text(0, 1, 0)).unwrap().calls().len(), 5);
    for text in [text(9, 1, 0), text(0, 5, 0), text(0, u64::MAX, 0), text(0, 1, 900)] {
        let session = reading(text).unwrap();
        assert_eq!(session.calls().len(), 4);
        assert_eq!(session.damage.unwrap().offset as usize, bytes.len());
    }
}

#[test]
fn versions_are_told_apart() {
    let (mut bytes, _) = journal(&some_records(), false);
    let later = call_frame(&serde_json::Value::Null);
    let unknown = frame(77, b"from the future");
    // In a file of our own version, an unknown kind is damage; of a newer one, it is skipped.
    let known = RecordedSession::from_bytes(&[&bytes[..], &unknown].concat()).unwrap();
    assert_eq!(known.damage.unwrap().offset as usize, bytes.len());
    bytes[10] += 1;
    let newer = RecordedSession::from_bytes(&[&bytes[..], &unknown].concat()).unwrap();
    assert!(newer.damage.is_none());
    let broken = RecordedSession::from_bytes(&[&bytes[..], &unknown, &later].concat()).unwrap();
    assert_eq!(broken.damage.unwrap().offset as usize, bytes.len() + unknown.len());
    bytes[8] += 1;
    let error = RecordedSession::from_bytes(&bytes).unwrap_err();
    assert!(matches!(error, JournalError::NewerFormat { found: 2, known: 1 }), "{error}");
    assert!(error.to_string().contains("version 2"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = RecordedSession::read("/nowhere/journal").unwrap_err();
    assert!(error.to_string().contains("/nowhere/journal"), "{error}");
}

/// Under a limit on the size of files, which cuts a record as a full disk does. The test
/// runs itself in a process with that limit.
#[test]
fn a_record_that_did_not_fit_leaves_no_half_behind() {
    const LIMITED: &str = "POLAR_TEST_JOURNAL_UNDER_LIMIT";
    if let Some(path) = std::env::var_os(LIMITED) {
        let mut writer = JournalWriter::create(path, &header()).unwrap();
        writer.append_call(&call(&[1], &[2])).unwrap();
        let before = writer.file_bytes();
        let long = call(&vec![7; 100_000], &[3]);
        let error = writer.append_call(&long).unwrap_err();
        assert!(matches!(error, JournalError::Io { doing: "write to", .. }), "{error}");
        assert_eq!(writer.file_bytes(), before);
        assert_eq!(writer.append_call(&call(&[1, 2, 4], &[5])).unwrap(), 1);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let script = "ulimit -f 64; trap '' XFSZ; exec \"$0\" --exact \"$1\"";
    let limited = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg("a_record_that_did_not_fit_leaves_no_half_behind")
        .env(LIMITED, &path)
        .output()
        .unwrap();
    assert!(limited.status.success(), "{limited:?}");
    let session = RecordedSession::read(&path).unwrap();
    assert_eq!(session.damage, None);
    assert_eq!(session.calls().len(), 2);
    assert_eq!(session.prompt_ids(&session.calls()[1]), Some(vec![1, 2, 4]));
}
