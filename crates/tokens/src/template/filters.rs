//! Jinja's filters and tests, where minijinja's differ from them.

use super::strings;
use super::values::{self, invalid, to_text};
use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Environment, Error, Value};

/// Registers them.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", values::tojson);
    environment.add_filter("string", |value: &Value| to_text(value));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("items", items);
    environment.add_filter("dictsort", dictsort);
    environment.add_filter("join", join);
    environment.add_filter("default", default);
    environment.add_filter("d", default);
    environment.add_filter("indent", indent);
    environment.add_filter("replace", replace);
    environment.add_filter("trim", trim);
    environment.add_filter("title", title);
    environment.add_filter("capitalize", |value: &Value| strings::capitalize(&to_text(value)));
    environment.add_filter("upper", |value: &Value| to_text(value).to_uppercase());
    environment.add_filter("lower", |value: &Value| to_text(value).to_lowercase());
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_filter("int", int);
    environment.add_filter("float", float);

    environment.add_test("mapping", values::is_mapping);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("number", |value: &Value| {
        value.kind() == ValueKind::Bool || values::as_float(value).is_some()
    });
    environment.add_test("float", values::is_float);
    environment.add_test("callable", is_callable);
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| invalid(format!("a {} has no length", value.kind())))
}

fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    let pairs = values::pairs(value);
    let pairs =
        pairs.ok_or_else(|| invalid("can only get item pairs from a mapping".to_owned()))?;
    Ok(pairs.into_iter().map(values::pair).collect())
}

fn dictsort(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (case_sensitive, by, reverse, args): (Option<bool>, Option<String>, Option<bool>, Kwargs) =
        from_args(args)?;
    let case_sensitive =
        case_sensitive.map_or_else(|| args.get("case_sensitive"), |v| Ok(Some(v)))?;
    let by = by.map_or_else(|| args.get("by"), |v| Ok(Some(v)))?;
    let reverse = reverse.map_or_else(|| args.get("reverse"), |v| Ok(Some(v)))?;
    args.assert_all_used()?;
    let mut pairs = values::pairs(value)
        .ok_or_else(|| invalid(format!("a {} cannot be sorted as a dict", value.kind())))?;
    let key = |(key, value): &(Value, Value)| {
        let by = if by.as_deref() == Some("value") { value } else { key };
        match by.as_str() {
            Some(text) if case_sensitive != Some(true) => Value::from(text.to_lowercase()),
            _ => by.clone(),
        }
    };
    pairs.sort_by(|a, b| match reverse {
        Some(true) => key(b).cmp(&key(a)),
        _ => key(a).cmp(&key(b)),
    });
    Ok(pairs.into_iter().map(values::pair).collect())
}

fn join(value: &Value, separator: Option<String>, args: Kwargs) -> Result<String, Error> {
    let attribute: Option<Value> = args.get("attribute")?;
    args.assert_all_used()?;
    let texts: Result<Vec<String>, Error> = value
        .try_iter()?
        .map(|item| match &attribute {
            Some(attribute) => Ok(to_text(&item.get_item(attribute)?)),
            None => Ok(to_text(&item)),
        })
        .collect();
    Ok(texts?.join(separator.as_deref().unwrap_or_default()))
}

fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<bool>,
    args: Kwargs,
) -> Result<Value, Error> {
    let named: Option<Value> = args.get("default_value")?;
    let boolean = boolean.or(args.get("boolean")?).unwrap_or(false);
    args.assert_all_used()?;
    if value.is_undefined() || (boolean && !value.is_true()) {
        return Ok(other.or(named).unwrap_or_else(|| Value::from("")));
    }
    Ok(value.clone())
}

/// Jinja indents lines by their ends; a final line break stays one.
fn indent(
    value: &Value,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    args: Kwargs,
) -> Result<String, Error> {
    let width = width.or(args.get("width")?);
    let first = first.or(args.get("first")?).unwrap_or(false);
    let blank = blank.or(args.get("blank")?).unwrap_or(false);
    args.assert_all_used()?;
    let indention = match &width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(width.as_usize().unwrap_or(0)),
        },
    };
    let text = to_text(value) + "\n";
    let lines = strings::lines(&text, false);
    let indented = lines.iter().enumerate().map(|(number, line)| {
        let leave = (number == 0 && !first) || (number > 0 && !blank && line.is_empty());
        if leave { (*line).to_owned() } else { format!("{indention}{line}") }
    });
    Ok(indented.collect::<Vec<_>>().join("\n"))
}

fn replace(value: &Value, old: &Value, new: &Value, count: Option<usize>) -> String {
    let (text, old, new) = (to_text(value), to_text(old), to_text(new));
    text.replacen(&old, &new, count.unwrap_or(usize::MAX))
}

fn trim(value: &Value, chars: Option<String>) -> String {
    strings::strip(&to_text(value), chars.as_deref(), true, true).to_owned()
}

/// Jinja's, which is not Python's `str.title`: words begin behind blanks, hyphens and brackets.
fn title(value: &Value) -> String {
    let mut begins = true;
    let mut out = String::new();
    for c in to_text(value).chars() {
        if begins {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        begins = strings::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

fn escape(value: &Value) -> String {
    let mut out = String::new();
    for c in to_text(value).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

fn int(value: &Value, default: Option<i64>) -> Value {
    let number = match value.as_str() {
        Some(text) => {
            let text = text.trim();
            text.parse::<i128>().ok().or_else(|| whole(text.parse().ok()?))
        }
        None if value.kind() == ValueKind::Bool => Some(value.is_true().into()),
        None => i128::try_from(value.clone()).ok().or_else(|| whole(values::as_float(value)?)),
    };
    Value::from(number.unwrap_or(default.unwrap_or(0).into()))
}

/// A float without its fraction.
fn whole(float: f64) -> Option<i128> {
    #[allow(clippy::cast_possible_truncation)]
    float.is_finite().then_some(float.trunc() as i128)
}

fn float(value: &Value, default: Option<f64>) -> f64 {
    let number = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None => values::as_float(value),
    };
    number.or(default).unwrap_or(0.0)
}

fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable
    )
}

fn is_callable(value: &Value) -> bool {
    values::is_method(value)
        || value.kind() == ValueKind::Plain && values::as_float(value).is_none()
}
