// Ways into Airflow's own pages. Its frame lets nobody leave: there the link is followed by the page around it.

const root = location.pathname.replace(/\/eaco\/.*$/, "");
const part = encodeURIComponent;

/** The address of a DAG run, or null where it is not known. */
export const runAddress = (dagId, runId) => (dagId && runId ? `${root}/dags/${part(dagId)}/runs/${part(runId)}` : null);

/** The address of a task instance, of the task where its run is not known, or null where it is hidden. */
export function taskAddress(job) {
  if (!job.dag_id || !job.task_id) return null;
  const run = runAddress(job.dag_id, job.run_id);
  if (run === null) return `${root}/dags/${part(job.dag_id)}/tasks/${part(job.task_id)}`;
  const mapped = job.map_index === null || job.map_index < 0 ? "" : `/mapped/${job.map_index}`;
  return `${run}/tasks/${part(job.task_id)}${mapped}`;
}

/** Follow a link of this page: as it is where the page stands alone, else in the page around the frame. */
export function follow(event) {
  if (window.parent === window) return;
  event.preventDefault();
  const outside = window.parent.document;
  const link = outside.createElement("a");
  link.href = event.currentTarget.href;
  if (event.ctrlKey || event.metaKey || event.shiftKey) link.target = "_blank";
  outside.body.append(link);
  link.click();
  link.remove();
}
