//! Journals.

use polar_record::{CallRecord, RecordedCall, RecordedSession};
use polar_types::CallId;

const PREAMBLE: usize = 12;
const FRAME_HEAD: usize = 9;

/// What is read of a journal, damaged or whole, is the same once written and read again, and is
/// all there is before the damage.
pub fn what_is_read_is_written_and_read_again(data: &[u8]) {
    read_again(data);
    read_again(&with_right_checksums(data));
}

fn read_again(bytes: &[u8]) {
    let Ok(session) = RecordedSession::from_bytes(bytes) else { return };
    let records = records(&session);
    if let Some(damage) = &session.damage {
        let whole = RecordedSession::from_bytes(&bytes[..damage.offset as usize]).unwrap();
        assert_eq!(whole.damage, None);
        assert_eq!(shown(&self::records(&whole)), shown(&records));
    }
    let again =
        RecordedSession::from_calls(&session.header, records.iter().map(|(r, d)| (r, *d))).unwrap();
    assert_eq!(again.damage, None);
    assert!(again.sealed);
    assert_eq!(shown(&self::records(&again)), shown(&records));
}

/// With the ids that a writer gives.
fn records(session: &RecordedSession) -> Vec<(CallRecord, Option<bool>)> {
    let record = |(index, call): (usize, &RecordedCall)| {
        let mut record = session.record(call);
        record.meta.call_id = CallId::of_index(index as u32);
        (record, call.delivered)
    };
    session.calls().iter().enumerate().map(record).collect()
}

/// For comparing: a logprob that is no number is equal to itself here.
fn shown(records: &[(CallRecord, Option<bool>)]) -> String {
    format!("{records:?}")
}

/// The same with each frame's checksum as it should be, so that what is inside gets read.
fn with_right_checksums(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let mut at = PREAMBLE;
    while let Some(head) = bytes.get(at..at + FRAME_HEAD) {
        let (length, kind) = ([head[0], head[1], head[2], head[3]], head[8]);
        let payload = at + FRAME_HEAD;
        let end = payload.saturating_add(u32::from_le_bytes(length) as usize);
        let Some(inside) = bytes.get(payload..end) else { break };
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&length);
        checksum.update(&[kind]);
        checksum.update(inside);
        bytes[at + 4..at + 8].copy_from_slice(&checksum.finalize().to_le_bytes());
        at = end;
    }
    bytes
}
