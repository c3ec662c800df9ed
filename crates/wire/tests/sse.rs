//! The event-stream codec: the format's rules, and that no chunking of the bytes changes
//! what is read.

use polar_wire::sse::{SseError, SseParser, write_json_event, write_text_event};
use proptest::prelude::*;

type Owned = (String, Vec<u8>);

/// All events of `chunks`, then the error if there was one.
fn read<'a>(
    limit: usize,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<Owned>, Option<SseError>, bool) {
    let mut parser = SseParser::new(limit);
    let mut events = Vec::new();
    for chunk in chunks {
        parser.push(chunk);
        loop {
            match parser.next_event() {
                Ok(Some(event)) => events.push((event.event.to_owned(), event.data.to_vec())),
                Ok(None) => break,
                Err(error) => return (events, Some(error), false),
            }
        }
    }
    (events, None, parser.has_partial_event())
}

fn data_of(stream: &str) -> Vec<String> {
    let (events, error, _) = read(1 << 16, [stream.as_bytes()]);
    assert_eq!(error, None);
    events.into_iter().map(|(_, data)| String::from_utf8_lossy(&data).into_owned()).collect()
}

#[test]
fn line_ends_may_be_lf_cr_or_crlf() {
    for end in ["\n", "\r", "\r\n"] {
        let stream = format!("data: one{end}{end}data: two{end}{end}");
        assert_eq!(data_of(&stream), ["one", "two"], "line end {end:?}");
        let stream = format!("data: one{end}data: two{end}{end}");
        assert_eq!(data_of(&stream), ["one\ntwo"], "line end {end:?}");
    }
}

#[test]
fn an_event_is_read_as_soon_as_its_blank_line_is_there() {
    let mut parser = SseParser::new(100);
    parser.push(b"data: a\r\n\r");
    assert_eq!(parser.next_event().unwrap().unwrap().data, b"a");
    parser.push(b"\ndata: b\r\n\r\n");
    assert_eq!(parser.next_event().unwrap().unwrap().data, b"b");
    assert_eq!(parser.next_event(), Ok(None));
    assert!(!parser.has_partial_event());
}

#[test]
fn comments_and_unknown_fields_are_read_over() {
    assert_eq!(data_of(": ping\n\n:\n\nid: 7\nretry: 10\nfoo\ndata:x\n: y\n\n"), ["x"]);
}

#[test]
fn data_lines_are_joined_even_with_a_long_name_between_them() {
    let stream = "data: a\nevent: a_name_longer_than_the_data\ndata\ndata:\ndata:  b\n\n";
    let (events, _, _) = read(1 << 16, [stream.as_bytes()]);
    let name = "a_name_longer_than_the_data".to_owned();
    assert_eq!(events, [(name, b"a\n\n\n b".to_vec())]);
}

#[test]
fn a_name_without_data_is_no_event_and_is_forgotten() {
    let (events, _, _) = read(100, [&b"event: lost\n\ndata: x\n\n"[..]]);
    assert_eq!(events, [(String::new(), b"x".to_vec())]);
}

#[test]
fn a_byte_order_mark_at_the_start_is_skipped() {
    assert_eq!(data_of("\u{feff}data: x\n\n"), ["x"]);
}

#[test]
fn a_cut_stream_is_noticed() {
    assert!(read(100, [&b"data: x\n"[..]]).2);
    assert!(read(100, [&b"data: x"[..]]).2);
    assert!(!read(100, [&b"data: x\n\n"[..]]).2);
}

#[test]
fn an_event_over_the_limit_is_an_error_and_stays_one() {
    let mut parser = SseParser::new(16);
    parser.push(b"data: fits\n\ndata: this one is far too long");
    assert_eq!(parser.next_event().unwrap().unwrap().data, b"fits");
    let error = SseError::TooLarge { limit: 16 };
    assert_eq!(parser.next_event(), Err(error));
    parser.push(b"\n\ndata: x\n\n");
    assert_eq!(parser.next_event(), Err(error));
}

#[test]
fn the_limit_counts_all_lines_of_an_event() {
    let stream = "data: 12345\n".repeat(4);
    assert_eq!(read(16, [stream.as_bytes()]).1, Some(SseError::TooLarge { limit: 16 }));
    assert_eq!(read(64, [stream.as_bytes()]).1, None);
}

#[test]
fn many_comments_do_not_count_as_one_event() {
    let stream = ": keep-alive\n".repeat(1000) + "data: x\n\n";
    let (events, error, _) = read(16, [stream.as_bytes()]);
    assert_eq!((events.len(), error), (1, None));
}

#[test]
fn written_events_are_read_back() {
    let mut out = Vec::new();
    write_json_event(&mut out, Some("ping"), &serde_json::json!({"text": "a\nb\r"}));
    write_text_event(&mut out, None, "one\ntwo");
    write_text_event(&mut out, None, "[DONE]");
    let (events, _, _) = read(1 << 16, [&out[..]]);
    assert_eq!(events[0], ("ping".to_owned(), br#"{"text":"a\nb\r"}"#.to_vec()));
    assert_eq!(events[1], (String::new(), b"one\ntwo".to_vec()));
    assert_eq!(events[2].1, b"[DONE]");
}

/// The format's rules once more, for a stream that is there as a whole.
fn read_plainly(stream: &str) -> Vec<Owned> {
    let stream = stream.strip_prefix('\u{feff}').unwrap_or(stream);
    let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut name, mut data) = (Vec::new(), String::new(), Vec::new());
    // What comes after the last line end is no line yet.
    for line in stream.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            _ if line.is_empty() => {
                if !data.is_empty() {
                    events.push((name.clone(), data.join("\n").into_bytes()));
                }
                name.clear();
                data.clear();
            }
            "data" => data.push(value.to_owned()),
            "event" => value.clone_into(&mut name),
            _ => {}
        }
    }
    events
}

/// Streams rich in the format's corners.
fn stream() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("data: ".to_owned()),
        Just("data".to_owned()),
        Just("event: ".to_owned()),
        Just(":".to_owned()),
        Just("\n".to_owned()),
        Just("\r".to_owned()),
        Just("\r\n".to_owned()),
        Just("\n\n".to_owned()),
        Just("\u{feff}".to_owned()),
        "[a-zäß: ]{0,12}",
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_chunking_changes_what_is_read(
        stream in stream(),
        cuts in prop::collection::vec(1usize..9, 1..20),
        limit in prop_oneof![Just(12usize), Just(1 << 16)],
    ) {
        if limit > stream.len() {
            prop_assert_eq!(&read(limit, [stream.as_bytes()]).0, &read_plainly(&stream));
        }
        let stream = stream.into_bytes();
        let whole = read(limit, [&stream[..]]);
        let bytes = read(limit, stream.chunks(1));
        prop_assert_eq!(&whole, &bytes);
        let mut rest = &stream[..];
        let mut chunks = Vec::new();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = tail;
        }
        prop_assert_eq!(&whole, &read(limit, chunks));
    }
}
