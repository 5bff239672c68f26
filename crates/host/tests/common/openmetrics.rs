//! A strict reader of OpenMetrics text, by the grammar of the specification.
//!
//! It knows what a page of gauges and counters needs: families in one piece, each with TYPE,
//! HELP and UNIT once and before its samples; names, labels and their escapes; no series twice.
//!
//! Source: OpenMetrics 1.0, sections "ABNF", "MetricFamily" and "Counter".

#![allow(unreachable_pub, missing_docs)]

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::process::{Command, Stdio};

/// One line with a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// The samples that Prometheus's own Python library reads from a page; none if it is not installed.
pub fn parsed_by_prometheus(page: &str) -> Option<Vec<Sample>> {
    const PROGRAM: &str = "import json, sys\n\
        from prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
        print(json.dumps([[sample.name, sample.labels, repr(sample.value)]\n\
            for family in read(sys.stdin.read()) for sample in family.samples]))";
    let has_it = |python: &&str| {
        let ask = Command::new(python).args(["-c", "import prometheus_client"]).output();
        ask.is_ok_and(|output| output.status.success())
    };
    // Debian's packages are for the second version.
    let python = ["python3", "/usr/bin/python3"].into_iter().find(has_it)?;
    let mut child = Command::new(python)
        .args(["-c", PROGRAM])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "refused by prometheus_client:\n{page}");
    // As text, since serde_json's floating-point numbers may differ in their last bit.
    let read: Vec<(String, BTreeMap<String, String>, String)> =
        serde_json::from_slice(&output.stdout).unwrap();
    let sample = |(name, labels, value): (_, _, String)| Sample {
        name,
        labels,
        value: value.parse().unwrap(),
    };
    Some(read.into_iter().map(sample).collect())
}

/// The metadata of a family so far.
#[derive(Debug, Default)]
struct Family {
    name: String,
    metadata: BTreeMap<&'static str, String>,
    has_samples: bool,
}

/// Reads a page.
///
/// # Errors
/// The wrong line, and its error.
pub fn parse(page: &str) -> Result<Vec<Sample>, String> {
    let page = page.strip_suffix("# EOF\n").ok_or("the page does not end in # EOF")?;
    let mut samples = Vec::new();
    let (mut families, mut series) = (HashSet::new(), HashSet::new());
    let mut family = Family::default();
    for line in page.split_inclusive('\n') {
        let at = |what: &str| format!("{what}: {line:?}");
        let text = line.strip_suffix('\n').ok_or_else(|| at("no line end"))?;
        if let Some(rest) = text.strip_prefix("# ") {
            let (kind, rest) = rest.split_once(' ').ok_or_else(|| at("no descriptor"))?;
            let kind = ["TYPE", "HELP", "UNIT"].into_iter().find(|known| *known == kind);
            let kind = kind.ok_or_else(|| at("neither TYPE nor HELP nor UNIT"))?;
            let (name, value) = rest.split_once(' ').ok_or_else(|| at("no value"))?;
            is_name(name, ":").then_some(()).ok_or_else(|| at("no metric name"))?;
            if name != family.name {
                if !families.insert(name.to_owned()) {
                    return Err(at("the family is in two pieces"));
                }
                family = Family { name: name.into(), ..Family::default() };
            }
            if family.has_samples {
                return Err(at("metadata behind samples"));
            }
            let (value, rest) = escaped(value)?;
            if !rest.is_empty() {
                return Err(at("a quote that is not escaped"));
            }
            let is_right = match kind {
                "TYPE" => ["gauge", "counter"].contains(&&*value),
                "UNIT" => name.ends_with(&format!("_{value}")),
                _ => !value.is_empty(),
            };
            if !is_right || family.metadata.insert(kind, value).is_some() {
                return Err(at("wrong or twice"));
            }
            continue;
        }
        let sample = sample(text).map_err(|what| at(&what))?;
        let suffix = match family.metadata.get("TYPE").map(String::as_str) {
            Some("counter") => "_total",
            Some("gauge") => "",
            _ => return Err(at("a sample of a family without TYPE")),
        };
        if sample.name != format!("{}{suffix}", family.name) {
            return Err(at("a sample that is not of the family before"));
        }
        if suffix == "_total" && (sample.value < 0.0 || sample.value.is_nan()) {
            return Err(at("a counter below zero"));
        }
        if !series.insert(format!("{} {:?}", sample.name, sample.labels)) {
            return Err(at("a series that stands twice"));
        }
        family.has_samples = true;
        samples.push(sample);
    }
    Ok(samples)
}

fn is_name(text: &str, beside: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || beside.contains(c);
    text.starts_with(is_first) && text.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

/// Text up to an unescaped quote or the end, and the remaining text.
fn escaped(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((place, letter)) = letters.next() {
        match letter {
            '"' => return Ok((value, &text[place..])),
            '\n' => return Err("a line end in a text".into()),
            '\\' => match letters.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, letter @ ('"' | '\\'))) => value.push(letter),
                other => return Err(format!("an escape of {other:?}")),
            },
            letter => value.push(letter),
        }
    }
    Ok((value, ""))
}

fn sample(text: &str) -> Result<Sample, String> {
    let end = text.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = text.split_at(end);
    if !is_name(name, ":") {
        return Err("no metric name".into());
    }
    let mut labels = BTreeMap::new();
    if let Some(mut inside) = rest.strip_prefix('{') {
        loop {
            let (label, value) = inside.split_once("=\"").ok_or("no label")?;
            if !is_name(label, "") {
                return Err(format!("{label:?} is no label's name"));
            }
            let (value, behind) = escaped(value)?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("{label} stands twice"));
            }
            inside = behind.strip_prefix('"').ok_or("a text without an end")?;
            match inside.strip_prefix(',') {
                Some(more) => inside = more,
                None => break,
            }
        }
        rest = inside.strip_prefix('}').ok_or("labels without an end")?;
    }
    let number = rest.strip_prefix(' ').ok_or("no blank before the value")?;
    if number.is_empty() || !number.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c)) {
        return Err(format!("{number:?} is no number"));
    }
    let value = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    Ok(Sample { name: name.into(), labels, value })
}

#[test]
fn prometheus_reads_the_same_numbers() {
    let mut page = String::from("# TYPE a gauge\n");
    for place in 0_u32..2000 {
        let value = f64::from(place).sqrt() / 1e6;
        page += &format!("a{{place=\"{place}\"}} {value}\n");
    }
    page += "# EOF\n";
    if let Some(read) = parsed_by_prometheus(&page) {
        assert_eq!(read, parse(&page).unwrap());
    }
}

#[test]
fn invalid_pages_are_refused() {
    let head = "# TYPE a counter\n";
    for good in ["# EOF\n", "# TYPE a counter\na_total{b=\"c\\\"\\\\\\n\"} 1\n# EOF\n"] {
        parse(good).unwrap();
    }
    for bad in [
        "",
        "# EOF",
        "\n# EOF\n",
        "a 1\n# EOF\n",
        &format!("{head}a 1\n# EOF\n"),
        &format!("{head}a_total 1 \n# EOF\n"),
        &format!("{head}a_total -1\n# EOF\n"),
        &format!("{head}a_total{{b=\"c\"d\"}} 1\n# EOF\n"),
        &format!("{head}a_total{{b=\"c\nd\"}} 1\n# EOF\n"),
        &format!("{head}a_total{{b=\"c\\\"}} 1\n# EOF\n"),
        &format!("{head}a_total{{b=\"\\x\"}} 1\n# EOF\n"),
        &format!("{head}a_total{{b=\"1\",b=\"2\"}} 1\n# EOF\n"),
        &format!("{head}a_total 1\na_total 2\n# EOF\n"),
        &format!("{head}a_total 1\n# TYPE b gauge\nb 1\n# HELP a x\n# EOF\n"),
    ] {
        assert!(parse(bad).is_err(), "{bad:?} was read");
    }
}
