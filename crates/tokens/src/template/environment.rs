//! The environment that templates run in, as `transformers` sets Jinja's up.

use super::{CivilDateTime, filters, strings, values};
use minijinja::value::Object;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use std::fmt;
use std::sync::Arc;

/// The variable that holds the clock; no template can name it.
pub(super) const CLOCK: &str = " clock";

/// What a template says by `raise_exception`.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// An environment without templates.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(|out, _, value| {
        match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&values::to_text(value)),
        }
        .map_err(Error::from)
    });
    environment.set_unknown_method_callback(method);
    filters::add_to(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

fn method(_: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return strings::call(text, name, args);
    }
    values::call(value, name, args)
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = values::to_text(message);
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Refusal(message)))
}

#[derive(Debug)]
struct Clock(CivilDateTime);

impl Object for Clock {}

/// A value that carries the time to [`strftime_now`].
pub(super) fn clock(now: CivilDateTime) -> Value {
    Value::from_object(Clock(now))
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let clock = state.lookup(CLOCK).unwrap_or_default();
    let clock: Arc<Clock> = clock
        .downcast_object()
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "there is no clock here"))?;
    jiff::fmt::strtime::format(format, clock.0)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}")))
}

/// The source with `{% generation %}` blocks, which mark what a model said, as scopes.
pub(super) fn without_generation_marks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let words = tag[..end].trim_start_matches("{%").trim_end_matches("%}");
        let name = words.trim_matches(['-', '+']).trim();
        match name {
            "generation" => out.push_str(&tag[..end].replace("generation", "with")),
            "endgeneration" => out.push_str(&tag[..end].replace("endgeneration", "endwith")),
            _ => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}
