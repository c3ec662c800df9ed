//! Finds marks in text that comes in pieces.

/// What a piece of text holds, as far as it is certain.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A mark begins at this byte; which of them it is.
    Mark { at: usize, which: usize },
    /// None of them before this byte; from there on the beginning of one may have come.
    Nothing { certain: usize },
}

/// The first of `marks`, none of which may begin with another.
fn find(text: &str, marks: &[&str]) -> Found {
    let first = marks
        .iter()
        .enumerate()
        .filter_map(|(which, mark)| text.find(mark).map(|at| (at, which)))
        .min();
    match first {
        Some((at, which)) => Found::Mark { at, which },
        None => Found::Nothing { certain: text.len() - held_back(text, marks) },
    }
}

/// Length of the longest end of `text` that is the beginning of a mark.
fn held_back(text: &str, marks: &[&str]) -> usize {
    let longest = marks.iter().map(|mark| mark.len()).max().unwrap_or(0).saturating_sub(1);
    let from = text.len().saturating_sub(longest);
    let starts = (from..text.len()).filter(|at| text.is_char_boundary(*at));
    starts
        .map(|at| &text[at..])
        .find(|end| marks.iter().any(|mark| mark.starts_with(end)))
        .map_or(0, str::len)
}

/// Whether `text` begins with `mark`; `None` while it is too short to tell.
pub(super) fn begins(text: &str, mark: &str) -> Option<bool> {
    match text.len() < mark.len() {
        true if mark.starts_with(text) => None,
        _ => Some(text.starts_with(mark)),
    }
}

/// Text that was not used yet.
#[derive(Default)]
pub(super) struct Pending {
    text: String,
    /// What is before this byte was taken.
    taken: usize,
    /// Bytes of the rest in which the marks looked for do not begin.
    searched: usize,
}

impl Pending {
    pub(super) fn push(&mut self, text: &str) {
        // Moved rarely, so that taking character by character costs no more than the text.
        if self.taken > self.text.len() / 2 {
            self.text.drain(..self.taken);
            self.taken = 0;
        }
        self.text.push_str(text);
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text[self.taken..]
    }

    /// Looks for the first of `marks`. As long as nothing is taken out they must stay the same:
    /// text is looked through once, however many pieces a long argument comes in.
    pub(super) fn find(&mut self, marks: &[&str]) -> Found {
        let found = match find(&self.as_str()[self.searched..], marks) {
            Found::Mark { at, which } => Found::Mark { at: at + self.searched, which },
            Found::Nothing { certain } => Found::Nothing { certain: certain + self.searched },
        };
        if let Found::Nothing { certain } = found {
            self.searched = certain;
        }
        found
    }

    /// Takes the first `bytes` out.
    pub(super) fn take(&mut self, bytes: usize) -> &str {
        self.searched = 0;
        let from = self.taken;
        self.taken += bytes;
        &self.text[from..self.taken]
    }

    /// Takes the first `bytes` out and adds them to `text`.
    pub(super) fn move_onto(&mut self, text: &mut String, bytes: usize) {
        text.push_str(self.take(bytes));
    }

    /// Takes everything out.
    pub(super) fn take_all(&mut self) -> &str {
        self.take(self.text.len() - self.taken)
    }

    /// Takes the next character out.
    pub(super) fn next_char(&mut self) -> Option<char> {
        let next = self.as_str().chars().next()?;
        self.searched = 0;
        self.taken += next.len_utf8();
        Some(next)
    }

    /// Takes white space at the beginning out.
    pub(super) fn skip_blank(&mut self) -> &str {
        let text = self.as_str();
        self.take(text.len() - text.trim_start().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_mark_is_found_and_its_beginning_held_back() {
        let marks = ["<a>", "<ab>"];
        assert_eq!(find("x<ab><a>", &marks), Found::Mark { at: 1, which: 1 });
        assert_eq!(find("x<a", &marks), Found::Nothing { certain: 1 });
        assert_eq!(find("<<a", &marks), Found::Nothing { certain: 1 });
        assert_eq!(find("é<", &["é<｜"]), Found::Nothing { certain: 0 });
        assert_eq!(find("xé", &["<｜"]), Found::Nothing { certain: 3 });
    }

    #[test]
    fn text_is_looked_through_once() {
        let mut pending = Pending::default();
        for (more, found) in [
            ("ab<", Found::Nothing { certain: 2 }),
            ("<", Found::Nothing { certain: 3 }),
            ("/a>", Found::Mark { at: 3, which: 0 }),
        ] {
            pending.push(more);
            assert_eq!(pending.find(&["</a>"]), found);
        }
        assert_eq!(pending.searched, 3);
        assert_eq!(pending.take(3), "ab<");
        assert_eq!(pending.find(&["</a>"]), Found::Mark { at: 0, which: 0 });
    }
}
