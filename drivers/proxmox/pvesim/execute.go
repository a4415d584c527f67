package pvesim

import (
	"fmt"
	"strings"
)

// apiExecute is POST /nodes/{node}/execute: several calls on the node, each with its
// own answer (PVE/API2/Nodes.pm).
func (t *table) apiExecute(w *world, c *call) (any, error) {
	commands, err := readCommands(c.in["commands"])
	if err != nil {
		return nil, badParam("commands", "invalid format - "+err.Error()+"\n")
	}
	list := []map[string]any{}
	for _, command := range commands {
		list = append(list, t.executed(w, c, command))
	}
	return list, nil
}

// executed is the answer of one of them.
func (t *table) executed(w *world, c *call, command batchCommand) map[string]any {
	data, err := t.runCommand(w, c, command)
	if err == nil {
		return map[string]any{"status": 200, "data": data}
	}
	failed := errorAnswer(err)
	entry := map[string]any{"status": failed.status, "message": fmt.Sprint(failed.content["message"])}
	if wrong, ok := failed.content["errors"]; ok {
		entry["errors"] = wrong
	}
	return entry
}

func (t *table) runCommand(w *world, c *call, command batchCommand) (any, error) {
	path := "/nodes/" + c.in["node"] + "/" + strings.Trim(command.Path, "/")
	m, vars, h, _ := t.find(command.Method, path)
	if m == nil || h == nil || m.Path == c.m.Path {
		return nil, fail("no handler for '%s'", strings.TrimPrefix(path, "/"))
	}
	one := &call{w: w, who: c.who, m: m, req: &request{http: c.req.http, method: command.Method, format: "json", path: path, params: command.Args, begun: c.req.begun}}
	if err := one.gather(vars); err != nil {
		return nil, err
	}
	if err := one.permitted(); err != nil {
		return nil, err
	}
	if wrong := m.CheckFor(w.cfg.Version, one.values); wrong != nil {
		return nil, &apiError{status: 400, errors: wrong}
	}
	one.settle()
	data, err := h(w, one)
	if list, ok := data.(paged); ok {
		data = list.data
	}
	if list, ok := data.(beside); ok {
		data = list.data
	}
	if console, ok := data.(socket); ok {
		data = console.data
	}
	return data, err
}
