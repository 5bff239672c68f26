//! Namespaces of a test: made by the testbed, removed with it, and known to `picnic cleanup`.

#![allow(unreachable_pub)]

use picnic_machine::testbed::Testbed;
use picnic_testing::skip;
use std::path::Path;
use std::process::Command;

/// These namespaces, for a test that needs these tools and devices. None, with a message, if this
/// machine has none.
pub fn testbed(test: &str, places: &[&str], needs: &[&str]) -> Option<Testbed> {
    for need in needs {
        let is_there = match need.starts_with('/') {
            true => Path::new(need).exists(),
            false => Command::new(need).arg("--help").output().is_ok(),
        };
        if !is_there {
            skip(test, &format!("there is no {need}"));
            return None;
        }
    }
    let made = Testbed::build("test").and_then(|bed| {
        places.iter().try_for_each(|place| bed.add_namespace(place))?;
        Ok(bed)
    });
    made.inspect_err(|error| skip(test, &error.to_string())).ok()
}
