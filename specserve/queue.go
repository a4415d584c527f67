package specserve

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/homestak/homestak-gitops/specserve/wire"
)

// serveQueue sends a child the tasks that wait for it. Only its own token opens the queue.
func serveQueue(x *request) error {
	if _, err := x.own(); err != nil {
		return err
	}
	list := wire.TaskList{Version: 1, Tasks: []wire.SignedTask{}}
	if x.o.Queue == nil || x.view.Signer == nil {
		return x.json(http.StatusOK, list)
	}
	tasks, err := x.o.Queue.Take(x.identity)
	if err != nil {
		return err
	}
	for _, t := range tasks {
		signed, err := t.Sign(x.view.Signer)
		if err != nil {
			return err
		}
		list.Tasks = append(list.Tasks, signed)
	}
	return x.json(http.StatusOK, list)
}

// The most that a result may have as JSON, in which a byte may take six.
const (
	maxLeafResult = 6*wire.MaxTaskOutput + 16<<10 // without a plan
	maxResult     = wire.MaxTaskPlan + maxLeafResult
)

// takeResult takes the result of a task. A result that was taken before changes nothing, and one of a task that is
// forgotten is dropped.
func takeResult(x *request) error {
	n, err := x.own()
	if err != nil {
		return err
	}
	if !n.Child {
		if x.ContentLength > maxLeafResult {
			x.unread()
			return tooLarge(maxLeafResult)
		}
		x.Body = http.MaxBytesReader(x.w, x.Body, maxLeafResult)
	}
	document, err := io.ReadAll(x.Body)
	if err != nil {
		return unreadable(err)
	}
	var r wire.TaskResult
	if err = json.Unmarshal(document, &r); err != nil {
		err = errors.New("the result is not the JSON document that is expected")
	} else {
		err = r.Check()
	}
	if err != nil {
		x.reason = "the result is not valid" // its text may have what the node wrote
		return &wire.Error{Code: wire.CodeSchema, Message: err.Error()}
	}
	known := false
	if x.o.Queue != nil {
		if known, err = x.o.Queue.Answer(x.identity, r); err != nil {
			return err
		}
	}
	if !known {
		return x.done(http.StatusAccepted, "forgotten")
	}
	return x.done(http.StatusAccepted, "kept")
}

// Announce tells a child that waits of the tasks in its queue.
func (s *Server) Announce(child string) { s.waiting.announce(child) }

// Next is the child that a node is reached through: the node itself, or the child that manages it; "" for a node that is not
// known here. The site says it: a child that reports a node of another one gets nothing that is meant for it. Reports count for
// nodes that the site does not have any more. pushed is true for a node that asks for nothing: the agent here enters it.
func (s *Server) Next(node string) (child string, pushed bool) {
	v := s.view.Load()
	if n := v.node(node); n != nil { // no report can take a node that is served here
		return node, !n.Child && (n.Run == nil || n.Entered)
	}
	child, declared := "", false
	if v.Catalog != nil && v.Catalog.in.Site != nil && v.Catalog.in.Agent != "" {
		child, declared = v.Catalog.in.Site.Toward(v.Catalog.in.Agent, node)
	}
	if !declared {
		child = s.reports.Through(node)
	}
	if v.node(child) == nil {
		return "", false
	}
	return child, false
}
