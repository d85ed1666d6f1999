use super::*;

#[test]
fn the_page_names_every_metric_and_every_label_from_the_start() {
    let metrics = Metrics::new(3);
    metrics.refused(Refusal::DnsFailed);
    metrics.admitted(Admission::OutsideClients);
    metrics.requested(RequestKind::Connect);
    let page = metrics.page();
    for line in [
        "egress_proxies_proxyd_refusals_total{reason=\"DnsFailed\"} 1",
        "egress_proxies_proxyd_accepted_connections_total{admission=\"OutsideClients\"} 1",
        "egress_proxies_proxyd_requests_total{kind=\"Connect\"} 1",
        "egress_proxies_proxyd_credential_generation 3",
        "egress_proxies_proxyd_sent_bytes_total 0",
        "egress_proxies_proxyd_open_connections 0",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "{line} is not in\n{page}"
        );
    }
    let refusals = page
        .lines()
        .filter(|line| line.contains("refusals_total{"))
        .count();
    assert_eq!(refusals, Refusal::ALL.len());
    assert!(page.ends_with("# EOF\n"));
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.starts_with("egress_proxies_proxyd_"), "{line}");
    }
}

#[test]
fn the_documentation_names_every_metric_and_every_label() {
    let document = include_str!("../../../../docs/proxyd.md");
    for line in Metrics::new(0).page().lines() {
        let word = match line.split(' ').collect::<Vec<_>>()[..] {
            ["#", "TYPE", name, _] => name,
            _ => match line.split_once("=\"") {
                Some((start, rest)) if start.contains("{reason") || start.contains("{kind") => {
                    rest.split('"').next().unwrap()
                }
                Some((start, rest)) if start.contains("{admission") => {
                    rest.split('"').next().unwrap()
                }
                _ => continue,
            },
        };
        assert!(document.contains(&format!("`{word}`")), "{word}");
    }
}
