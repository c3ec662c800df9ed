//! All fixtures, held to what is in them.

use crate::folding::Fixture;
use crate::{json_families, tagged_families};

pub(crate) fn all() -> Vec<Fixture> {
    let mut all = json_families::fixtures();
    all.extend(tagged_families::fixtures());
    all
}

#[test]
fn every_fixture_gives_its_parts() {
    let mut wrong = String::new();
    for fixture in all() {
        let parts = fixture.parse([fixture.text]);
        if parts != fixture.parts {
            let Fixture { name, parts: right, .. } = fixture;
            wrong.push_str(&format!("{name}\n  got  {parts:?}\n  want {right:?}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
