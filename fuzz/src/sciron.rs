//! SCIRON's rules file from any text: read and printed back, or refused with a message.

use picnic_filter::Filters;
use picnic_sciron::{Installation, Rules};

/// Rules that were read print to text that reads back the same, can be checked and installed.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match text.parse::<Rules>() {
        Ok(rules) => {
            let printed = rules.to_string();
            let again: Rules = printed.parse().expect("what was printed");
            assert_eq!(again.to_string(), printed);
            assert_eq!(again.default, rules.default);
            if rules.rules.len() <= 64 {
                let found = rules.check();
                assert!(found.shadowed.len() + found.redundant.len() <= rules.rules.len());
            }
            let filters = Filters::new(1);
            rules.install(&filters, &Installation::default()).expect("fits");
            assert_eq!(filters.list().len(), rules.rules.len() + 1);
        }
        Err(faults) => {
            assert!((1..=20).contains(&faults.faults.len()));
            let told = faults.to_string();
            assert_eq!(told.lines().count(), faults.faults.len());
            assert!(told.lines().all(|line| line.starts_with("rules:") && line.len() < 1000));
        }
    }
}

/// Initial inputs.
pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "# nothing\n",
        "tcp any 10.0.0.1/32 any 22 accept\nudp 192.168.0.0/16 any any 1-1023 drop\ndefault drop\n",
        "any 2001:db8::/32 ::1 1024-65535 any accept # six\nicmp any any any any drop\n",
        "default accept\ndefault drop\n",
        "tcp 10.0.0.1/8 any 9-1 70000 deny\n",
        "255 0.0.0.0/0 any any any drop\r\n",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_pass() {
        super::seeds().iter().for_each(|seed| super::run(seed));
    }
}
