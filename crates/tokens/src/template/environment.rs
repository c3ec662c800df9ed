//! The environment that templates run in, as `transformers` sets Jinja's up.

use super::{CivilDateTime, filters, rewrite, strings, values};
use minijinja::value::{Object, Rest};
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
    environment.add_function(rewrite::ITERABLE, iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

fn method(_: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if name == rewrite::SLICE {
        return values::slice(value, args);
    }
    if let Some(text) = value.as_str() {
        return strings::call(text, name, args);
    }
    values::call(value, name, args)
}

/// What a loop goes through. Several values are a tuple without its brackets.
fn iterable(values: Rest<Value>) -> Result<Value, Error> {
    let [value] = &values[..] else {
        return Ok(Value::from(values.0));
    };
    match value.is_none() || value.try_iter().is_err() {
        true => Err(values::invalid(format!("a {} value is not iterable", value.kind()))),
        false => Ok(value.clone()),
    }
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
