//! Finds the one line in which two texts differ, and a pattern that takes it out of both.

/// A regular expression that finds the only line in which the texts differ, in both of them and
/// nothing else in either; none where they differ in more, or where the lines have nothing in
/// common by which to know them.
pub(crate) fn pattern(before: &str, after: &str) -> Option<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let mut changed = old.iter().zip(&new).filter(|(old, new)| old != new);
    let (Some((old_line, new_line)), None) = (changed.next(), changed.next()) else { return None };
    if old.len() != new.len() {
        return None;
    }
    let front = whole_words(common_front(old_line, new_line), old_line, new_line);
    let rest = |line: &str| line[front.len()..].chars().rev().collect::<String>();
    let (old_rest, new_rest) = (rest(old_line), rest(new_line));
    let back = whole_words(common_front(&old_rest, &new_rest), &old_rest, &new_rest);
    let back: String = back.chars().rev().collect();
    if front.chars().chain(back.chars()).filter(|letter| letter.is_alphabetic()).count() < 3 {
        return None;
    }
    let pattern = format!("(?m)^{}.*{}$\\n?", regex::escape(front), regex::escape(&back));
    let finder = regex::Regex::new(&pattern).ok()?;
    let taken = finder.replace_all(before, "") == finder.replace_all(after, "");
    let is_alone = [before, after].iter().all(|text| finder.find_iter(text).count() == 1);
    (taken && is_alone).then_some(pattern)
}

/// What both begin with.
fn common_front<'a>(left: &'a str, right: &str) -> &'a str {
    let mut pairs = left.char_indices().zip(right.chars());
    let end = pairs.find(|((_, left), right)| left != right).map(|((at, _), _)| at);
    &left[..end.unwrap_or(left.len().min(right.len()))]
}

/// Leaves out the beginning of a word that goes on differently: `at 10:15` and `at 10:17` have
/// `at ` in common.
fn whole_words<'a>(front: &'a str, left: &str, right: &str) -> &'a str {
    let is_within = |letter: char| letter.is_alphanumeric() || ":.-_/".contains(letter);
    let goes_on = |line: &str| line[front.len()..].starts_with(is_within);
    if !goes_on(left) && !goes_on(right) {
        return front;
    }
    front.trim_end_matches(is_within)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_changes_is_found() {
        let text = |line: &str| format!("You help.\n{line}\nBe brief.");
        let of = |old: &str, new: &str| pattern(&text(old), &text(new));
        assert_eq!(
            of("x-billing: cch=4f2;", "x-billing: cch=91a;").as_deref(),
            Some(r"(?m)^x\-billing: cch=.*;$\n?")
        );
        assert_eq!(
            of("Now it is 10:15:01 UTC.", "Now it is 10:15:44 UTC.").as_deref(),
            Some(r"(?m)^Now it is .* UTC\.$\n?")
        );
        // Nothing to know the line by, and more than one line.
        assert_eq!(of("4f2", "91a"), None);
        assert_eq!(pattern("a b c\nd e f", "a b x\nd e y"), None);
        assert_eq!(pattern("Date: 1", "Date: 2\nmore"), None);
        assert_eq!(of("same", "same"), None);
        // Another line of the same looks would go too.
        assert_eq!(pattern("Date: 1\nDate: 7", "Date: 2\nDate: 7"), None);
        assert!(of("Zeit: früh um 7", "Zeit: früh um 8").is_some());
        assert!(of("Datum: ä", "Datum: ö").is_some());
    }
}
