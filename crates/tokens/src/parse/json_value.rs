//! Where a JSON value ends in text that comes in pieces, without judging the value.

/// Follows one value: brackets are counted, strings skipped. What is no JSON ends somewhere too.
#[derive(Default, Clone, Copy)]
pub(super) struct ValueScanner {
    kind: Kind,
    depth: u32,
    in_string: bool,
    escaped: bool,
    broken: bool,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Kind {
    #[default]
    Unknown,
    Container,
    Text,
    Scalar,
}

/// Whether a character belongs to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// White space before it.
    Before,
    /// It does.
    Inside,
    /// It does, and ends it.
    Last,
    /// The value ended before it.
    After,
}

impl ValueScanner {
    pub(super) fn push(&mut self, c: char) -> Place {
        if self.in_string {
            return self.push_in_string(c);
        }
        match (self.kind, c) {
            (Kind::Unknown, c) if c.is_ascii_whitespace() => Place::Before,
            (Kind::Unknown, '"') => self.open(Kind::Text),
            (Kind::Unknown, '{' | '[') => self.open(Kind::Container),
            (Kind::Unknown, ',' | '}' | ']') => Place::After,
            (Kind::Unknown, _) => self.open(Kind::Scalar),
            (Kind::Container, '"') => {
                self.in_string = true;
                Place::Inside
            }
            (Kind::Container, '{' | '[') => {
                self.depth += 1;
                Place::Inside
            }
            (Kind::Container, '}' | ']') => {
                self.depth -= 1;
                if self.depth == 0 { Place::Last } else { Place::Inside }
            }
            (Kind::Scalar, ',' | '}' | ']') => Place::After,
            (Kind::Scalar, c) if c.is_ascii_whitespace() => Place::After,
            _ => Place::Inside,
        }
    }

    /// A mark here would be a part of a string. A string with a raw line break in it is none, and
    /// may have no end.
    pub(super) fn in_string(&self) -> bool {
        self.in_string && !self.broken
    }

    /// Nothing of the value has come.
    pub(super) fn is_empty(&self) -> bool {
        self.kind == Kind::Unknown
    }

    fn open(&mut self, kind: Kind) -> Place {
        self.kind = kind;
        match kind {
            Kind::Container => self.depth = 1,
            Kind::Text => self.in_string = true,
            Kind::Unknown | Kind::Scalar => {}
        }
        Place::Inside
    }

    fn push_in_string(&mut self, c: char) -> Place {
        if self.escaped {
            self.escaped = false;
            return Place::Inside;
        }
        match c {
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                if self.kind == Kind::Text {
                    return Place::Last;
                }
            }
            c if c < ' ' => self.broken = true,
            _ => {}
        }
        Place::Inside
    }
}
