//! Finding the wrong value inside of an object whose `type` says its shape.
//!
//! serde reads such an object as a whole, so that its errors name the object and no field of
//! it. Here the field is found by trying: a value is the wrong one when the error changes
//! without it. This knows nothing of the types that are read.

use super::Step;
use serde_json::Value;

/// What reading says of a value: where, and what.
pub(super) type Complaint = Option<(Vec<Step>, String)>;

/// How often a body may be read again to find wrong values in it: the less often the longer it
/// is. Beyond it the object is named.
pub(super) fn affordable_readings(body: &Value) -> usize {
    const MOST_BYTES: usize = 64 << 20;
    (MOST_BYTES / body.to_string().len().max(1)).clamp(16, 4000)
}

/// The way from `at` to the value that `message` is about, as far as it can be told. `read`
/// reads a whole body.
pub(super) fn way_to_culprit(
    body: &Value,
    at: &[Step],
    message: &str,
    readings_left: &mut usize,
    read: impl Fn(&Value) -> Complaint,
) -> Vec<Step> {
    let complaint = Some((at.to_vec(), message.to_owned()));
    let mut search = Search { body: body.clone(), complaint, read, readings_left };
    match message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
        Some(field) => search.object_without(at, field).unwrap_or_else(|| at.to_vec()),
        None => search.culprit(at.to_vec()),
    }
}

struct Search<'a, R> {
    body: Value,
    complaint: Complaint,
    read: R,
    readings_left: &'a mut usize,
}

impl<R: Fn(&Value) -> Complaint> Search<'_, R> {
    /// What is said of the body as it is now.
    fn said(&mut self) -> Complaint {
        *self.readings_left = self.readings_left.saturating_sub(1);
        (self.read)(&self.body)
    }

    fn is_over(&self) -> bool {
        *self.readings_left == 0
    }

    fn node(&mut self, at: &[Step]) -> Option<&mut Value> {
        super::follow(&mut self.body, at)
    }

    /// Goes down from a value that is known to hold the wrong one.
    fn culprit(&mut self, mut at: Vec<Step>) -> Vec<Step> {
        while let Some(step) = self.wrong_child(&at) {
            at.push(step);
        }
        at
    }

    /// The child without which the complaint is another. Children are taken away one after
    /// the other, since two of them may be wrong in the same way; the tag is taken last, since
    /// nothing can be read without it.
    fn wrong_child(&mut self, at: &[Step]) -> Option<Step> {
        let whole = self.node(at)?.clone();
        let found = match &whole {
            Value::Object(fields) => {
                let mut keys: Vec<&String> = fields.keys().collect();
                keys.sort_by_key(|key| *key == "type");
                keys.into_iter()
                    .map(|key| Step::Key(key.clone()))
                    .find(|step| self.without(at, step))
            }
            Value::Array(items) => {
                (0..items.len()).rev().map(Step::Index).find(|step| self.without(at, step))
            }
            _ => None,
        };
        if let Some(node) = self.node(at) {
            *node = whole;
        }
        found
    }

    /// Takes a child away. True when the complaint changed with it.
    fn without(&mut self, at: &[Step], step: &Step) -> bool {
        if self.is_over() {
            return false;
        }
        match (self.node(at), step) {
            // The others keep their order, by which the first wrong one is told.
            (Some(Value::Object(fields)), Step::Key(key)) => fields.retain(|name, _| name != key),
            (Some(Value::Array(items)), Step::Index(index)) => drop(items.remove(*index)),
            _ => return false,
        }
        self.said() != self.complaint
    }

    /// The first object that lacks `field`: with any text there the complaint changes. An object
    /// that has no such field says so, and one of free names takes the text.
    fn object_without(&mut self, at: &[Step], field: &str) -> Option<Vec<Step>> {
        if self.is_over() {
            return None;
        }
        let steps: Vec<Step> = match self.node(at)? {
            Value::Object(fields) if !fields.contains_key(field) => {
                fields.insert(field.to_owned(), Value::from("text"));
                let said = self.said();
                let is_no_field = said
                    .as_ref()
                    .is_some_and(|(_, said)| said.starts_with(&format!("unknown field `{field}`")));
                let changed = said != self.complaint && !is_no_field;
                if let Value::Object(fields) = self.node(at)? {
                    fields.retain(|name, _| name != field);
                }
                if changed {
                    return Some(at.to_vec());
                }
                self.children(at)
            }
            Value::Object(_) | Value::Array(_) => self.children(at),
            _ => return None,
        };
        steps.into_iter().find_map(|step| {
            let below = [at, &[step]].concat();
            self.object_without(&below, field)
        })
    }

    fn children(&mut self, at: &[Step]) -> Vec<Step> {
        match self.node(at) {
            Some(Value::Object(fields)) => fields.keys().cloned().map(Step::Key).collect(),
            Some(Value::Array(items)) => (0..items.len()).map(Step::Index).collect(),
            _ => Vec::new(),
        }
    }
}
