//! Promise 8: a session costs what its tokens and its text cost, however many calls it has.
#![allow(clippy::unwrap_used)] // Tests: a panic is the report.

mod calls;

use calls::{header, linear_session};
use polar_record::{CallRecord, JournalWriter, PrefixTree, RecordedSession};

/// Tokens of the whole conversation, and bytes of its messages' text.
fn content(records: &[CallRecord]) -> (usize, usize) {
    let last = records.last().unwrap();
    let tokens = last.prompt_ids.as_ref().unwrap().len() + last.sampled_ids.as_ref().unwrap().len();
    let text = last.messages.iter().chain([&last.reply]);
    (tokens, text.map(|message| message["content"].as_str().unwrap().len()).sum())
}

#[test]
fn promise_8_journal_and_memory_are_as_large_as_tokens_and_text() {
    for turns in [50, 100, 200] {
        let records = linear_session(turns);
        let (tokens, text) = content(&records);
        assert_eq!(tokens, 500 * turns as usize);
        let bound = 2 * (8 * tokens + text);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut writer = JournalWriter::create(&path, &header()).unwrap();
        for record in &records {
            writer.append_call(record).unwrap();
        }
        let (file, writing) = (writer.file_bytes() as usize, writer.resident_bytes());
        assert_eq!(file as u64, path.metadata().unwrap().len());
        let session = RecordedSession::read(&path).unwrap();
        let reading = session.resident_bytes();
        println!(
            "{turns} turns, {tokens} tokens, {text} bytes of text: file {file}, writer {writing}, reader {reading}, bound {bound}"
        );
        assert!(file <= bound, "{file} bytes in the file, {bound} allowed");
        assert!(reading <= bound, "{reading} bytes when read, {bound} allowed");
        // The writer keeps no text.
        assert!(writing <= 2 * 8 * tokens, "{writing} bytes when writing");
    }
}

#[test]
fn promise_8_reading_touches_each_token_a_fixed_number_of_times() {
    for turns in [50, 100, 200] {
        let records = linear_session(turns);
        let (tokens, _) = content(&records);
        let calls = records.iter().map(|record| (record, Some(true)));
        let session = RecordedSession::from_calls(&header(), calls).unwrap();
        let work = session.tokens().work() as usize;
        println!("{turns} turns, {tokens} tokens: {work} touched");
        assert!(work <= 2 * tokens, "{work} tokens touched for {tokens}");
    }
}

#[test]
fn whole_prompts_are_compared_once_and_stored_once() {
    let records = linear_session(100);
    let (tokens, _) = content(&records);
    let mut tree = PrefixTree::new();
    let mut given = 0;
    for (record, call) in records.iter().zip(0..) {
        let prompt = record.prompt_ids.as_ref().unwrap();
        let sampled = record.sampled_ids.as_ref().unwrap();
        given += prompt.len() + sampled.len();
        let end = tree.insert(tree.root(), prompt, call);
        tree.insert(end, sampled, call);
    }
    assert_eq!(tree.len(), tokens);
    let work = tree.work() as usize;
    assert!(work <= given + tokens, "{work} tokens touched for {given} given");
}
