# SPDX-License-Identifier: Apache-2.0
"""Prometheus rules by promtool, the dashboard, and the runbook pages."""

import json
import pathlib
import re
import subprocess

import pytest
import yaml
from kube import ROOT, helm, run

RULES = ROOT / "packaging/monitoring/dray.rules.yaml"
DASHBOARD = ROOT / "packaging/monitoring/dashboard.json"
RUNBOOKS = ROOT / "docs/runbooks"
CASES = yaml.safe_load((ROOT / "tests/kube/alerts.yaml").read_text())
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {r["alert"]: r for g in GROUPS for r in g["rules"] if "alert" in r}
RECORDS = [r for g in GROUPS for r in g["rules"] if "record" in r]
OURS = {"job": "dray", "instance": "a:7412"}


def series(values):
    """With the labels that every scraped series has."""
    labels = ", ".join(f'{k}="{v}"' for k, v in OURS.items())
    return [{"series": (name if "{" in name else name + "{}").replace("{", "{" + labels + ", ").replace(", }", "}"), "values": v} for name, v in values.items()]


def unit_test(name, values, expected):
    return {"interval": "1m", "input_series": series(values), "alert_rule_test": [{"eval_time": "60m", "alertname": name, "exp_alerts": expected}]}


def test_rules_are_valid():
    assert "SUCCESS" in run("promtool", "check", "rules", RULES)
    assert set(CASES) == set(ALERTS)


@pytest.fixture(scope="module")
def alert_tests(tmp_path_factory):
    """What promtool says about each alert. It evaluates all rules of a file at each minute of each test, so an alert is in a file of its own,
    beside the recorded series that it uses."""
    folder = tmp_path_factory.mktemp("alerts")
    for name, rule in ALERTS.items():
        (folder / f"{name}.rules").write_text(yaml.safe_dump({"groups": [{"name": name, "rules": [*(r for r in RECORDS if "dray:" in rule["expr"]), rule]}]}))
        case = CASES[name]
        expected = {"exp_labels": {**OURS, "severity": rule["labels"]["severity"], **case.get("labels", {})},
                    "exp_annotations": {"summary": case["summary"], "runbook": f"docs/runbooks/{name}.md"}}
        (folder / name).write_text(yaml.safe_dump({"rule_files": [f"{name}.rules"], "evaluation_interval": "1m", "tests": [
            unit_test(name, case["fires"], [expected]), unit_test(name, case["quiet"], []), unit_test(name, {}, [])]}))
    said = subprocess.run(["promtool", "test", "rules", *(folder / name for name in ALERTS)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    parts = re.split(r"^Unit Testing:  (.*)$", said, flags=re.M)[1:]
    return {pathlib.Path(file).name: text.strip() for file, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("name", ALERTS)
def test_alert_fires_and_is_quiet(name, alert_tests):
    assert alert_tests[name] == "SUCCESS"


def test_recorded_series(tmp_path):
    """Rates are sums of both transports, and times are those of a transport, class and phase."""
    queue = 'transport="tcp", class="bulk", phase="queue"'
    phases = {f"dray_transfer_phase_seconds_sum{{{queue}}}": "0+0.3x60", f"dray_transfer_phase_seconds_count{{{queue}}}": "0+100x60",
              **{f'dray_transfer_phase_seconds_bucket{{{queue}, le="{le}"}}': f"0+{n}x60" for le, n in (("0.001", 0), ("0.01", 100), ("+Inf", 100))}}
    buckets = {f'dray_transfer_duration_seconds_bucket{{transport="tcp", le="{le}"}}': f"0+{n}x60" for le, n in (("0.001", 0), ("0.01", 100), ("+Inf", 100))}
    values = {"dray_tcp_sent_bytes_total": "0+60x60", "dray_rdma_sent_bytes_total": "0+600x60", "dray_tcp_received_bytes_total": "0+6x60",
              "dray_rdma_received_bytes_total": "0x60", "dray_transfers_done_total": "0+54x60", "dray_transfers_failed_total": "0+6x60",
              "dray_transfers_cancelled_total": "0x60", **buckets, **phases}
    expected = {"dray:sent_bytes:rate5m": 11, "dray:received_bytes:rate5m": 0.1, "dray:transfers_ended:rate5m": 1, "dray:transfers_failed:ratio5m": 0.1,
                "dray:transfer_duration_seconds:p99_5m": 0.00991, "dray:transfer_phase_seconds:p99_5m": 0.00991,
                "dray:transfer_phase_seconds:mean5m": 0.003}
    labels = {name: {"transport": "tcp", **({"class": "bulk", "phase": "queue"} if "phase" in name else {})} for name in expected if "transfer_" in name}
    assert set(expected) == {r["record"] for r in RECORDS}
    queries = [{"expr": f"round(100000 * {name})", "eval_time": "30m", "exp_samples": [{"labels": "{%s}" % ", ".join(
        f'{k}="{v}"' for k, v in {**OURS, **labels.get(name, {})}.items()), "value": round(100000 * value)}]} for name, value in expected.items()]
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [
        {"interval": "1m", "input_series": series(values), "promql_expr_test": queries}]}))
    run("promtool", "test", "rules", file)


def test_each_alert_has_a_page():
    """The page has sections, and the links in it lead to files."""
    for name, rule in ALERTS.items():
        page = ROOT / rule["annotations"]["runbook"]
        text = page.read_text()
        assert text.count("\n## ") == 3 and f"# {name}\n" in text
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert (page.parent / link).exists(), link
    assert {f.stem for f in RUNBOOKS.glob("Dray*.md")} == set(ALERTS)


def test_dashboard():
    """Each metric without labels is in a panel; panels do not overlap; expressions are valid PromQL for one instance."""
    board = json.loads(DASHBOARD.read_text())
    panels = [p for row in board["panels"] for p in [row, *row.get("panels", [])]]
    assert len({p["id"] for p in panels}) == len(panels)
    for group in [board["panels"]] + [row["panels"] for row in board["panels"] if row.get("panels")]:
        cells = [(x, y) for p in group for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
                 for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])]
        assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    exprs = [t["expr"] for p in panels for t in p.get("targets", [])]
    metrics = {m["name"] for m in yaml.safe_load((ROOT / "schema/metrics.yaml").read_text())["metrics"]}
    records = " ".join(r["expr"] for r in RECORDS)
    assert not {m for m in metrics if not any(re.search(rf"\b{m}\b", e) for e in [*exprs, records])}
    assert all(e.count('instance=~"$instance"') >= 1 for e in exprs)


def test_expressions_of_the_dashboard_are_promql(tmp_path):
    board = json.loads(DASHBOARD.read_text())
    exprs = {t["expr"] for row in board["panels"] for p in [row, *row.get("panels", [])] for t in p.get("targets", [])}
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [{"record": f"r{i}", "expr": e.replace("$instance", ".*")} for i, e in enumerate(sorted(exprs))]}]}))
    assert f"{len(exprs)} rules found" in run("promtool", "check", "rules", file)


def test_the_chart_keeps_braces():
    """Helm does not read the templates of Prometheus and Grafana."""
    things = helm("inject.enabled=false", "monitoring.enabled=true")
    assert things[("PrometheusRule", "dray-system", "dray")]["spec"] == yaml.safe_load(RULES.read_text())
    data = things[("ConfigMap", "dray-system", "dray-dashboard")]["data"]["dray.json"]
    assert json.loads(data) == json.loads(DASHBOARD.read_text())
