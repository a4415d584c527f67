package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/homestak/homestak-gitops/engine/diag"
	"github.com/homestak/homestak-gitops/specserve/wire"
)

// Report sends the parent the result of the last run.
func (f Folder) Report(ctx context.Context, to Server, now time.Time) error {
	r, err := f.report(to.Client.Parent.Identity, now)
	if err != nil {
		return fmt.Errorf("making the report: %w", err)
	}
	r.Agent = strings.TrimPrefix(to.Client.Agent, "homestak-gitops/")
	document, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("making the report: %w", err)
	}
	return to.Client.Report(ctx, document)
}

// report is the report by the state of the folder. The node does not know commits: it has the spec of one.
func (f Folder) report(identity string, now time.Time) (wire.Report, error) {
	r := wire.Report{Version: wire.ReportVersion, Identity: identity, At: now.UTC(), Phase: wire.PhaseConfig, Findings: diag.List{}, Nodes: []wire.ReportNode{}}
	complete, err := f.Complete()
	if err != nil {
		return r, err
	}
	failed, err := f.Failed()
	if err != nil {
		return r, err
	}
	if complete != nil {
		r.Phase = wire.PhaseRun
	}
	r.Ready = complete != nil && failed == nil
	if failed != nil {
		summary, detail, _ := strings.Cut(failed.Message, "\n")
		r.Findings = diag.List{{Severity: diag.Error, Summary: wire.ShortenText(summary), Detail: wire.ShortenText(detail)}}
	}
	return r, nil
}
