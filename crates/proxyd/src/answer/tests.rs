use super::*;
use http_body_util::BodyExt;

#[test]
fn every_refusal_says_its_status_and_its_error_once() {
    for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
        assert_eq!(
            refusal as usize, index,
            "the counters are found by this index"
        );
        let answer = refusal.answer();
        let status = answer.status();
        assert!(
            status.is_client_error() || status.is_server_error(),
            "{refusal:?}"
        );
        let errors: Vec<_> = answer.headers().get_all(&PROXY_STATUS).iter().collect();
        // RFC 9209, 2.3: the gateway codes are about the target and must say why.
        if matches!(status.as_u16(), 502 | 504) {
            assert_eq!(errors.len(), 1, "{refusal:?}");
        }
        for error in errors {
            let error = error.to_str().unwrap();
            let token = error.strip_prefix("egress-proxies; error=").unwrap();
            assert!(
                token.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{token}"
            );
        }
    }
}

#[test]
fn only_a_missing_credential_is_challenged_and_without_detail() {
    for refusal in Refusal::ALL {
        let challenged = refusal.answer().headers().contains_key(PROXY_AUTHENTICATE);
        assert_eq!(challenged, refusal == Refusal::Unauthenticated);
    }
}

#[tokio::test]
async fn a_refused_target_is_named_in_words() {
    let answer = target_answer(TargetError::Port);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(
        &text[..],
        b"the target's port is not a number from 1 to 65535\n"
    );
}

#[test]
fn the_documentation_names_every_status_and_error() {
    let document = include_str!("../../../../docs/proxyd.md");
    for refusal in Refusal::ALL {
        let (status, error, _) = refusal.parts();
        let error = error.map_or("none".to_owned(), |error| format!("`{error}`"));
        let row = format!("| {} | {error} | `{refusal:?}` |", status.as_u16());
        assert!(document.contains(&row), "{row}");
    }
}
