//! Names of images, as container engines read them: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`.
//!
//! Refused is only what no engine takes. Whether there is such an image, the node finds out.

/// Most letters of a tag.
const MOST_TAG: usize = 128;

/// Why no image can have this name, in words.
pub(super) fn why_no_reference(name: &str) -> Option<String> {
    if let Some(letter) = name.chars().find(|letter| letter.is_whitespace() || *letter == '\0') {
        return Some(format!("it holds {letter:?}"));
    }
    if let Some((scheme, _)) = name.split_once("://") {
        return Some(format!("it takes no `{scheme}://`"));
    }
    let (name, digest) = match name.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (name, None),
    };
    if let Some(digest) = digest.filter(|digest| !is_digest(digest)) {
        return Some(format!(
            "{digest:?} is no digest such as `sha256:` and 64 hexadecimal digits"
        ));
    }
    let last = name.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match name[last..].split_once(':') {
        Some((base, tag)) => (&name[..last + base.len()], Some(tag)),
        None => (name, None),
    };
    if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
        return Some(format!(
            "{tag:?} is no tag: it may have up to {MOST_TAG} letters, digits, `_`, `.` and `-`"
        ));
    }
    let mut parts: Vec<&str> = path.split('/').collect();
    if parts.len() > 1 && is_host(parts[0]) {
        parts.remove(0);
    }
    let part = parts.into_iter().find(|part| !is_part(part))?;
    Some(match part {
        "" => "a part of it is empty".to_owned(),
        _ if part.chars().any(char::is_uppercase) => {
            format!("{part:?} has capital letters, which only a host or a tag may have")
        }
        _ => format!(
            "{part:?} may have lower-case letters and digits, with `.`, `_`, `__` or `-` between"
        ),
    })
}

fn is_host(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.chars().any(char::is_uppercase)
}

fn is_tag(tag: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
    !tag.is_empty()
        && tag.len() <= MOST_TAG
        && tag.chars().all(plain)
        && !tag.starts_with(['.', '-'])
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty() && hex.len() >= 32 && hex.chars().all(|it| it.is_ascii_hexdigit())
    })
}

fn is_part(part: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let ends_plain = part.starts_with(plain) && part.ends_with(plain);
    let mut between = part.split(plain).filter(|between| !between.is_empty());
    ends_plain
        && between.all(|between| {
            matches!(between, "." | "_" | "__") || between.chars().all(|letter| letter == '-')
        })
}

#[cfg(test)]
mod tests {
    use super::why_no_reference;

    #[test]
    fn what_engines_take_is_taken() {
        for name in [
            "debian",
            "debian:12",
            "python:3.12-slim_X.y",
            "library/debian:bookworm-20250101",
            "ghcr.io/some.org/x",
            "localhost:5000/a/b__c/d-e--f:v1",
            "localhost/made:latest",
            "REGISTRY.example.org/a:1",
            "10.0.0.5:5000/a",
            "swebench/sweb.eval.x86_64.django_1776_django-11099:latest",
            "a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "a:1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "0123456789ab",
        ] {
            assert_eq!(why_no_reference(name), None, "{name}");
        }
    }

    #[test]
    fn what_no_engine_takes_is_refused_in_words() {
        for (name, words) in [
            ("Debian:12", "capital letters"),
            ("library/Debian", "capital letters"),
            ("debian 12", "' '"),
            ("debian:12\n", "'\\n'"),
            ("docker://debian:12", "`docker://`"),
            ("https://ghcr.io/a/b", "`https://`"),
            ("debian:", "is no tag"),
            ("debian::12", "is no tag"),
            ("a//b", "is empty"),
            ("/debian", "is empty"),
            ("debian/", "is empty"),
            ("a@latest", "is no digest"),
            ("a@sha256:12", "is no digest"),
            ("-a", "between"),
            ("a..b", "between"),
            ("a/b!", "between"),
        ] {
            let why = why_no_reference(name).unwrap_or_else(|| panic!("{name:?} is taken"));
            assert!(why.contains(words), "{name:?}: {why}");
        }
    }
}
