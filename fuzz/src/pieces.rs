//! Input cut into pieces of changing sizes. Where it is cut follows from the input itself, so
//! that a finding comes back and seeds need no plan of cuts.

/// The bytes in pieces.
pub fn bytes(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut sizes = Sizes::of(data);
    let mut rest = data;
    std::iter::from_fn(move || {
        let (piece, after) = rest.split_at(sizes.next(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The text in pieces, cut between characters.
pub fn text(text: &str) -> impl Iterator<Item = &str> {
    let mut sizes = Sizes::of(text.as_bytes());
    let mut rest = text;
    std::iter::from_fn(move || {
        let size = sizes.next(rest.len());
        let end = (size..=rest.len()).find(|end| rest.is_char_boundary(*end))?;
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

struct Sizes(u64);

impl Sizes {
    fn of(data: &[u8]) -> Self {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        Self(data.iter().fold(0xcbf2_9ce4_8422_2325, step) | 1)
    }

    /// At least 1 where there is something; mostly a few bytes, now and then many.
    fn next(&mut self, len: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let most = [1, 3, 9, 80][(self.0 >> 33) as usize % 4];
        (1 + (self.0 >> 40) as usize % most).min(len)
    }
}
