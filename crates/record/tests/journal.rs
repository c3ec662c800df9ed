//! The journal as its users see it: what is written comes back, whatever happens to the file.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod calls;

use calls::{call, header, linear_session, reply, user};
use polar_record::{Durability, JournalError, JournalWriter, RecordedSession};
use polar_types::{CallId, WeightSpan};
use serde_json::json;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

fn records(session: &RecordedSession) -> Vec<polar_record::CallRecord> {
    session.calls().iter().map(|call| session.record(call)).collect()
}

#[test]
fn a_call_comes_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut first = call(&[1, 2, 3], &[4, 5, 6, 7]);
    first.meta.weight_versions =
        vec![WeightSpan { version: Some("step-7".to_owned()), start: 0, end: 4 }];
    first.meta.extra.insert("anything".to_owned(), json!({"nested": [1.5, null]}));
    first.logprobs = vec![Some(-0.0), None, Some(-9999.0), Some(f32::MIN_POSITIVE / 8.0)];
    first.tools = Some(json!([{"type": "function", "function": {"name": "bash"}}]));
    let mut without_ids = call(&[], &[]);
    without_ids.prompt_ids = None;
    without_ids.sampled_ids = None;
    let mut without_prompt = call(&[], &[9, 9]);
    without_prompt.prompt_ids = None;
    let mut without_sampled = call(&[1, 2, 3, 4, 5, 6, 7, 8], &[]);
    without_sampled.sampled_ids = None;
    without_sampled.tools = first.tools.clone();
    let mut written = vec![first, without_ids, without_prompt, without_sampled];

    let mut writer = JournalWriter::create_with(&path, &header(), Durability::Machine).unwrap();
    for (index, record) in written.iter_mut().enumerate() {
        assert_eq!(writer.append_call(record).unwrap(), index as u32);
        record.meta.call_id = CallId::of_index(index as u32);
    }
    writer.append_delivery(1, true).unwrap();
    writer.append_delivery(2, true).unwrap();
    writer.append_delivery(2, false).unwrap();
    writer.seal().unwrap();

    let session = RecordedSession::read(&path).unwrap();
    assert_eq!(session.header, header());
    assert!(session.sealed && session.damage.is_none());
    assert_eq!(records(&session), written);
    let bits = |at: usize| session.calls()[0].logprobs[at].map(f32::to_bits);
    assert_eq!(bits(0), Some((-0.0f32).to_bits()));
    assert_eq!(bits(3), Some((f32::MIN_POSITIVE / 8.0).to_bits()));
    let delivered: Vec<_> = session.calls().iter().map(|call| call.delivered).collect();
    assert_eq!(delivered, [None, Some(true), Some(false), None]);
}

/// The test runs itself in a process that writes until it is killed.
#[test]
fn promise_4_killing_the_writer_loses_no_acknowledged_call() {
    const WRITING: &str = "POLAR_TEST_JOURNAL_UNTIL_KILLED";
    if let Some(path) = std::env::var_os(WRITING) {
        let mut writer = JournalWriter::create(path, &header()).unwrap();
        let records = linear_session(20);
        // Far more than are waited for, and an end if nobody kills it.
        for record in records.iter().cycle().take(5000) {
            let index = writer.append_call(record).unwrap();
            // One write, past the harness of tests, which would keep it back.
            std::io::stderr().write_all(format!("{index}\n").as_bytes()).unwrap();
        }
        return;
    }
    for acknowledged in [1, 7, 40] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "promise_4_killing_the_writer_loses_no_acknowledged_call",
            ])
            .env(WRITING, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(writer.stderr.take().unwrap()).lines().map_while(Result::ok);
        let before = lines.by_ref().take(acknowledged).last().unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        let last: usize = lines.last().unwrap_or(before).parse().unwrap();

        let session = RecordedSession::read(&path).unwrap();
        let calls = session.calls();
        assert!(calls.len() > last, "{last} was acknowledged, {} calls are there", calls.len());
        assert!(!session.sealed);
        let written = &linear_session(20)[last % 20];
        assert_eq!(session.prompt_ids(&calls[last]), written.prompt_ids);
        assert_eq!(session.sampled_ids(&calls[last]), written.sampled_ids);
    }
}

#[test]
fn a_journal_that_is_there_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    JournalWriter::create(&path, &header()).unwrap().seal().unwrap();
    let before = fs::read(&path).unwrap();
    let error = JournalWriter::create(&path, &header()).unwrap_err();
    assert!(matches!(error, JournalError::Io { doing: "create", .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_delivery_of_a_call_that_was_not_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = JournalWriter::create(folder.path().join("journal"), &header()).unwrap();
    let error = writer.append_delivery(0, true).unwrap_err();
    assert!(matches!(error, JournalError::UnknownCall { index: 0, calls: 0 }), "{error}");
}

#[test]
fn messages_and_tools_are_stored_once() {
    let text = "a long story ".repeat(1000);
    let mut first = call(&[1], &[2]);
    first.messages = vec![user(&text)];
    first.tools = Some(json!([text]));
    let mut rewritten = call(&[3], &[4]);
    rewritten.messages = vec![user("something before it"), user(&text)];
    rewritten.reply = reply(&text);
    rewritten.tools = first.tools.clone();
    let mut next = call(&[3, 4, 5], &[6]);
    next.messages = vec![user("something before it"), user(&text), reply(&text), user("go on")];
    let written = [first, rewritten, next];

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut writer = JournalWriter::create(&path, &header()).unwrap();
    for record in &written {
        writer.append_call(record).unwrap();
    }
    // As a user's message, as a reply and as tools: three values hold the text.
    let size = writer.file_bytes() as usize;
    assert!(size < 3 * text.len() + 3000, "{size} bytes");
    let session = RecordedSession::read(&path).unwrap();
    for (read, written) in records(&session).iter().zip(&written) {
        assert_eq!((&read.messages, &read.tools), (&written.messages, &written.tools));
    }
    assert_eq!(session.messages(&session.calls()[2], 3), [user("go on")]);
    let nearest = session.calls()[2].nearest_by_messages.unwrap();
    assert_eq!((nearest.call, nearest.shared), (1, 3));
}
