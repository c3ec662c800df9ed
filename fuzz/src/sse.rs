//! Server-sent events.

use crate::pieces;
use polar_wire::sse::{SseError, SseParser, write_json_event};

/// Larger than any input, so that no event is refused.
const NO_LIMIT: usize = 1 << 26;
const SMALL_LIMIT: usize = 64;

type Events = Vec<(String, Vec<u8>)>;

/// The events are the same wherever the bytes are cut and however lines end, and what is written
/// of them reads back.
pub fn any_chunking_gives_the_same_events(data: &[u8]) {
    let whole = read([data], NO_LIMIT).unwrap();
    assert_eq!(read(pieces::bytes(data), NO_LIMIT).unwrap(), whole);
    // What a small limit refuses depends on the cuts; what comes before it does not.
    let (Ok(events) | Err((events, _))) = read(pieces::bytes(data), SMALL_LIMIT);
    assert!(whole.starts_with(&events));
    if !data.contains(&b'\r') {
        for line_end in ["\r\n", "\r"] {
            let data = with_line_ends(data, line_end.as_bytes());
            assert_eq!(read(pieces::bytes(&data), NO_LIMIT).unwrap(), whole, "{line_end:?}");
        }
    }
    for (name, data) in whole {
        let Ok(text) = String::from_utf8(data) else { continue };
        let mut written = Vec::new();
        write_json_event(&mut written, (!name.is_empty()).then_some(name.as_str()), &text);
        let [(read_name, json)] = read([&written[..]], NO_LIMIT).unwrap().try_into().unwrap();
        assert_eq!(read_name, name);
        assert_eq!(serde_json::from_slice::<String>(&json).unwrap(), text);
    }
}

fn with_line_ends(data: &[u8], line_end: &[u8]) -> Vec<u8> {
    data.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(line_end)
}

fn read<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    limit: usize,
) -> Result<Events, (Events, SseError)> {
    let mut parser = SseParser::new(limit);
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece);
        loop {
            match parser.next_event() {
                Ok(Some(event)) => events.push((event.event.to_owned(), event.data.to_vec())),
                Ok(None) => break,
                Err(error) => return Err((events, error)),
            }
        }
    }
    Ok(events)
}
