// Package watch brings objects to the plan and keeps what the plan must remember.
//
// Sources of objects are folders of their own: files reads a folder of manifests, hub a cluster.
// plan decides. This package keeps, for a process that has no cluster to write statuses to, what a
// status would remember: of each attachment its sources, its public port and its VIP over restarts (Memory), and since
// when each condition is as it is (Statuses).
package watch
