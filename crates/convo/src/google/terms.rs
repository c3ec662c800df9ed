//! What a request says about the form of its reply.

/// What a request of Google's dialect says about the form of its reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GoogleTerms {
    /// Whether reasoning is shown as thought parts.
    pub include_thoughts: bool,
    /// Form of a stream.
    pub framing: GoogleFraming,
}

/// How the chunks of a stream follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GoogleFraming {
    /// As server-sent events, asked for by `alt=sse`.
    #[default]
    Events,
    /// As the items of one JSON array.
    Array,
}
